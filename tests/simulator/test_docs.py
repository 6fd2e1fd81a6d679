"""The examples of docs/simulator.md give the numbers that stand there.

Seen to fail: any number of an example changed by one.
"""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


def test_every_example_of_the_page_is_true() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 19
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, None, 0)
    report: list[str] = []
    found = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert found.failed == 0, "".join(report)
