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
    """One end of a control connection.

    Attributes:
        num_received: Bytes that have come.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._data = bytearray(_LENGTH.size)
        self._is_header = True
        self._done = 0
        self.num_received = 0

    def fileno(self) -> int:
        """Returns the descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Sends one message, which is not None.

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
        while (message := self.receive_part()) is None:
            pass
        return message

    def receive_part(self) -> Any:
        """Reads once and returns the message if it is whole now, else None.

        So whoever waits for several senders is not held up by one that stops within a message.

        Raises:
            ControlClosedError: As `receive`.
        """
        try:
            count = self._socket.recv_into(memoryview(self._data)[self._done :])
        except (OSError, TimeoutError) as error:
            raise ControlClosedError(str(error)) from error
        if count == 0:
            raise ControlClosedError("end of file")
        self._done += count
        self.num_received += count
        if self._done < len(self._data):
            return None
        data, self._done = self._data, 0
        self._is_header = not self._is_header
        if self._is_header:
            self._data = bytearray(_LENGTH.size)
            return pickle.loads(data)
        self._data = bytearray(_LENGTH.unpack(data)[0])
        return None

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()
