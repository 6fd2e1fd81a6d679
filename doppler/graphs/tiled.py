"""Skeletons of tiled Cholesky, LU and QR factorisations.

An op reads and writes tiles; an edge joins the last writer of a tile with each reader, so only true
dependences are there (a tensor that is written anew is a new tensor). Work is in units of b^3
flop for tiles of b x b, sizes are in tiles.

Sources: Buttari, Langou, Kurzak and Dongarra 2009 (tiled algorithms, tile QR with a flat tree and
its kernels' flop counts); LU without pivoting, right-looking.
"""

from collections.abc import Callable, Iterable

from doppler.core.errors import GraphError
from doppler.graphs.skeleton import Skeleton

Tile = tuple[int, int]
WORK = {
    "potrf": 1 / 3,
    "syrk": 1.0,
    "getrf": 2 / 3,
    "trsm": 1.0,
    "gemm": 2.0,
    "geqrt": 4 / 3,
    "unmqr": 2.0,
    "tsqrt": 2.0,
    "tsmqr": 4.0,
}


class _Tiles:
    """Ops in program order; remembers who wrote each tile last."""

    def __init__(self) -> None:
        self._kinds: list[str] = []
        self._names: list[str] = []
        self._outputs: list[tuple[float, ...]] = []
        self._edges: list[tuple[int, int, int]] = []
        self._last: dict[Tile, tuple[int, int]] = {}

    def op(
        self, kind: str, at: tuple[int, ...], reads: Iterable[Tile], writes: Iterable[Tile]
    ) -> None:
        """Adds an op; a tile that is written is read first."""
        index, written = len(self._kinds), list(writes)
        seen: set[tuple[int, int]] = set()
        for tile in (*reads, *written):
            source = self._last.get(tile)
            if source is not None and source not in seen:
                seen.add(source)
                self._edges.append((*source, index))
        self._kinds.append(kind)
        self._names.append(f"{kind}[{','.join(map(str, at))}]")
        self._outputs.append((1.0,) * len(written))
        for output, tile in enumerate(written):
            self._last[tile] = (index, output)

    def skeleton(self) -> Skeleton:
        return Skeleton(
            kinds=tuple(self._kinds),
            names=tuple(self._names),
            work=tuple(WORK[kind] for kind in self._kinds),
            outputs=tuple(self._outputs),
            edges=tuple(self._edges),
        )


def cholesky(rows: int, panels: int) -> Skeleton:
    """The first `panels` block columns of a tiled Cholesky factorisation of rows x rows tiles."""
    tiles = _Tiles()
    for k in range(panels):
        tiles.op("potrf", (k,), (), [(k, k)])
        for i in range(k + 1, rows):
            tiles.op("trsm", (i, k), [(k, k)], [(i, k)])
        for i in range(k + 1, rows):
            tiles.op("syrk", (i, k), [(i, k)], [(i, i)])
            for j in range(k + 1, i):
                tiles.op("gemm", (i, j, k), [(i, k), (j, k)], [(i, j)])
    return tiles.skeleton()


def lu(rows: int, cols: int) -> Skeleton:
    """A tiled LU factorisation without pivoting of rows x cols tiles."""
    tiles = _Tiles()
    for k in range(min(rows, cols)):
        tiles.op("getrf", (k,), (), [(k, k)])
        for j in range(k + 1, cols):
            tiles.op("trsm", (k, j, k), [(k, k)], [(k, j)])
        for i in range(k + 1, rows):
            tiles.op("trsm", (i, k, k), [(k, k)], [(i, k)])
            for j in range(k + 1, cols):
                tiles.op("gemm", (i, j, k), [(i, k), (k, j)], [(i, j)])
    return tiles.skeleton()


def qr(rows: int, cols: int) -> Skeleton:
    """A tiled QR factorisation of rows x cols tiles, panels reduced down a flat tree."""
    tiles = _Tiles()
    for k in range(min(rows, cols)):
        tiles.op("geqrt", (k,), (), [(k, k)])
        for j in range(k + 1, cols):
            tiles.op("unmqr", (k, j), [(k, k)], [(k, j)])
        for i in range(k + 1, rows):
            tiles.op("tsqrt", (i, k), (), [(k, k), (i, k)])
            for j in range(k + 1, cols):
                tiles.op("tsmqr", (i, j, k), [(i, k)], [(k, j), (i, j)])
    return tiles.skeleton()


def nearest_cholesky(num_ops: int) -> Skeleton:
    """The Cholesky factorisation, at least half of its panels done, closest to `num_ops` ops."""

    def sizes(rows: int) -> Iterable[tuple[int, int, int]]:
        count = 0
        for k in range(rows):
            left = rows - 1 - k
            count += 1 + left + left * (left + 1) // 2
            if 2 * (k + 1) >= rows:
                yield count, rows, k + 1

    return cholesky(*_nearest(num_ops, sizes))


def nearest_lu(num_ops: int) -> Skeleton:
    """The LU factorisation of a matrix up to twice as tall as wide closest to `num_ops` ops."""
    return lu(*_nearest(num_ops, _rectangles))


def nearest_qr(num_ops: int) -> Skeleton:
    """The QR factorisation of a matrix up to twice as tall as wide closest to `num_ops` ops."""
    return qr(*_nearest(num_ops, _rectangles))


def _rectangles(cols: int) -> Iterable[tuple[int, int, int]]:
    """(ops, rows, cols) for rows up to 2 cols: step k has (rows - k)(cols - k) ops."""
    for rows in range(cols, 2 * cols + 1):
        yield sum((rows - k) * (cols - k) for k in range(cols)), rows, cols


def _nearest(
    num_ops: int, sizes: Callable[[int], Iterable[tuple[int, int, int]]]
) -> tuple[int, int]:
    """The shape with the count nearest to `num_ops`; among equals the squarer, fuller one."""
    if num_ops < 1:
        raise GraphError(f"num_ops of a generated graph is at least 1, and it is {num_ops}")
    best: tuple[tuple[int, int, int], tuple[int, int]] | None = None
    side = 1
    while True:
        options = list(sizes(side))
        for count, first, second in options:
            rank = (abs(count - num_ops), first - second, first)
            if best is None or rank < best[0]:
                best = (rank, (first, second))
        if min(count for count, _, _ in options) > num_ops and best is not None:
            return best[1]
        side += 1
