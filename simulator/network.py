"""The network of the specification: buses with queues in a fixed order."""

from dataclasses import dataclass

from doppler.core.dispatcher import SendTensor


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """A transfer that waits for its buses; the order of the fields is the order of the queues."""

    request_ns: int
    iteration: int
    rank: int
    output: int
    destination: int
    op: int
    source: int
    buses: tuple[str, ...]

    @property
    def command(self) -> SendTensor:
        """The dispatcher's command that it came from."""
        return SendTensor(self.op, self.output, self.iteration, self.destination, -1)


class Network:
    """Which transfer holds which bus, and who waits."""

    def __init__(self) -> None:
        self._waiting: list[Request] = []
        self._held: set[str] = set()

    def request(self, request: Request) -> None:
        """Queues a transfer on all buses that it needs."""
        self._waiting.append(request)
        self._waiting.sort()

    def release(self, request: Request) -> None:
        """Frees the buses of a transfer that has started."""
        self._held.difference_update(request.buses)

    def start(self) -> list[Request]:
        """Returns the transfers that start now: first in every queue, and every bus free."""
        started: list[Request] = []
        passed: set[str] = set()
        for request in self._waiting:
            if not self._held.intersection(request.buses) and not passed.intersection(
                request.buses
            ):
                started.append(request)
            passed.update(request.buses)
        for request in started:
            self._waiting.remove(request)
            self._held.update(request.buses)
        return started
