"""The control socket between parent and worker: length-prefixed pickles of `executor.messages`.

Pickle is safe here because both ends are processes of one executor, joined by an inherited socket
pair that nobody else can open; nothing that a user passes is ever unpickled.
"""

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("=Q")


class ControlClosedError(ConnectionError):
    """Raised when the other end is gone."""


class ControlSocket:
    """One end of a control connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        """Returns the descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Sends one message.

        Raises:
            ControlClosedError: If the other end is gone or takes nothing in time.
        """
        data = pickle.dumps(message, protocol=5)
        try:
            self._socket.sendall(_LENGTH.pack(len(data)))
            self._socket.sendall(data)
        except (OSError, TimeoutError) as error:
            raise ControlClosedError(str(error)) from error

    def receive(self) -> Any:
        """Waits for one message and returns it.

        Raises:
            ControlClosedError: If the other end is gone or stops in the middle.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view, done = memoryview(data), 0
        while done < length:
            try:
                count = self._socket.recv_into(view[done:])
            except (OSError, TimeoutError) as error:
                raise ControlClosedError(str(error)) from error
            if count == 0:
                raise ControlClosedError("end of file")
            done += count
        return data
