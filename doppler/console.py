"""What a person sees while a command runs: sections, tables, progress bars."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

Advance = Callable[[int, str], None]
"""Moves a progress bar on by so many steps, with a word on where it stands."""


class View:
    """Writes to a rich console; on a pipe the bars shrink to their last line."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()

    def section(self, title: str) -> None:
        """Starts a step of the command."""
        self._console.print(f"\n[bold]{title}[/bold]")

    def line(self, text: str) -> None:
        """Writes one line of plain text."""
        self._console.print(text, markup=False, highlight=False)

    def show(self, what: RenderableType) -> None:
        """Writes a table or another rich renderable."""
        self._console.print(what)

    @contextmanager
    def progress(self, title: str, total: int | None) -> Iterator[Advance]:
        """Shows a progress bar of `total` steps (None: unknown) while the block runs."""
        columns: tuple[Any, ...] = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console, transient=False) as bar:
            task = bar.add_task(title, total=total, note="")

            def advance(steps: int, note: str) -> None:
                bar.update(task, advance=steps, note=note)

            yield advance
