"""For all tests: an interrupt is an interrupt, also where the shell started them in background."""

import signal


def pytest_configure():
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
