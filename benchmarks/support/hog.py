"""A program that keeps one core busy: `python hog.py CORE`. Prints `ready` once it is pinned.

It imports next to nothing, so that it is there at once, and ends with the program that started it.
"""

import os
import sys


def main() -> None:
    parent = os.getppid()
    os.sched_setaffinity(0, {int(sys.argv[1])})
    print("ready", flush=True)
    while os.getppid() == parent:
        sum(range(100_000))


if __name__ == "__main__":
    main()
