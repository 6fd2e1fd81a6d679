"""Reader of Graphviz DOT with weights: `digraph { a [Weight=7]; b [Weight=4]; a -> b [Weight=3] }`.

The weight of a node is its run time, the weight of an edge the data that is transferred where its
ends differ; an edge without one is pure order. Attribute names may have any case, values may be
quoted, nodes and edges may interleave, and defaults (`node [Weight=1]`) and subgraphs are obeyed.
The language is that of graphviz.org/doc/info/lang.html; undirected graphs are refused. Everything
else that the file says (colours, labels, ports, graph attributes) is counted and left out.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from doppler.core.errors import FormatError
from doppler.graphs.imported import (
    ImportedGraph,
    WeightedEdge,
    WeightedNode,
    count_in,
    read_text,
    read_weight,
    weighted_graph,
)

WEIGHT = "weight"
KEYWORDS = ("node", "edge", "graph", "digraph", "subgraph", "strict")
MAX_DEPTH = 100
TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/|^\#[^\n]*)
    |(?P<quoted>"(?:[^"\\]|\\.)*")
    |(?P<html><)
    |(?P<mark>->|--|[{}\[\];,=:+])
    |(?P<word>[^\W\d]\w*|-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?!\w))""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

Attributes = dict[str, str]


def read_dot(path: str | Path, ns_per_unit: float, bytes_per_unit: float) -> ImportedGraph:
    """Returns the graph of a DOT file and its times.

    Args:
        path: The file.
        ns_per_unit: Nanoseconds of one unit of a node's weight; the file does not say.
        bytes_per_unit: Bytes of one unit of an edge's weight. Where an edge weighs a transfer
            time, use the bytes that the cluster's links carry in it.

    Raises:
        FormatError: If the text is no such DOT; names file and line.
        GraphError: If the edges form a circle.
    """
    text = read_text(path, "DOT")
    return parse_dot(text, ns_per_unit, bytes_per_unit, Path(path).stem, str(path))


def parse_dot(
    text: str, ns_per_unit: float, bytes_per_unit: float, name: str, where: str = "DOT text"
) -> ImportedGraph:
    """Returns the graph of DOT text; see `read_dot`. `name` stands in where the text has none."""
    parser = _Parser(list(_tokens(text, where)), where)
    parser.parse()
    ignored = parser.ignored
    nodes: list[WeightedNode] = []
    for node, (attributes, line) in parser.nodes.items():
        weight = read_weight(attributes, (WEIGHT,), "node", ignored, f"{where}, line {line}")
        if weight is None:
            raise FormatError(
                f"{where}, line {line}: every node has a Weight, and node {node!r} has none"
            )
        nodes.append(WeightedNode(name=node, weight=weight, line=line))
    edges: list[WeightedEdge] = []
    for edge in parser.edges:
        weight = read_weight(
            edge.attributes, (WEIGHT,), "edge", ignored, f"{where}, line {edge.line}"
        )
        edges.append(
            WeightedEdge(src=edge.src, dst=edge.dst, weight=weight or Fraction(0), line=edge.line)
        )
    if not nodes:
        raise FormatError(f"{where}, line 1: a graph has at least one node, and this one has none")
    return weighted_graph(
        parser.name or name,
        nodes,
        edges,
        ns_per_unit=ns_per_unit,
        bytes_per_unit=bytes_per_unit,
        ignored=ignored,
        where=where,
    )


@dataclass(frozen=True, slots=True)
class _Token:
    """A mark ("->", "{"), or an id (`is_id`); keywords are unquoted ids."""

    text: str
    line: int
    is_id: bool = False
    is_quoted: bool = False

    @property
    def keyword(self) -> str:
        """The keyword that it is, or nothing."""
        word = self.text.lower()
        return word if self.is_id and not self.is_quoted and word in KEYWORDS else ""


@dataclass(slots=True)
class _Edge:
    src: str
    dst: str
    attributes: Attributes
    line: int


@dataclass(frozen=True, slots=True)
class _Scope:
    """Default attributes that hold from here to the end of a subgraph."""

    node: Attributes = field(default_factory=dict)
    edge: Attributes = field(default_factory=dict)

    def inner(self) -> "_Scope":
        return _Scope(dict(self.node), dict(self.edge))


def _tokens(text: str, where: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise FormatError(f"{where}, line {line}: {text[position : position + 20]!r} is no DOT")
        end, group = match.end(), match.lastgroup
        if group == "html":
            end = _html_end(text, position, f"{where}, line {line}")
            yield _Token(text[position:end], line, is_id=True, is_quoted=True)
        elif group == "quoted":
            inside = match.group()[1:-1].replace("\\\n", "").replace('\\"', '"')
            yield _Token(inside, line, is_id=True, is_quoted=True)
        elif group != "space":
            yield _Token(match.group(), line, is_id=group == "word")
        line += text.count("\n", position, end)
        position = end


def _html_end(text: str, start: int, where: str) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += {"<": 1, ">": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    raise FormatError(f"{where}: an HTML string begins with '<' and never ends")


class _Parser:
    """Recursive descent over the tokens of one file.

    Attributes:
        name: Name of the graph, or "".
        nodes: Name -> (attributes, line of the first mention), in order of first mention.
        edges: In order.
        ignored: What was left out.
    """

    def __init__(self, tokens: list[_Token], where: str) -> None:
        self.name = ""
        self.nodes: dict[str, tuple[Attributes, int]] = {}
        self.edges: list[_Edge] = []
        self.ignored: dict[str, int] = {}
        self._tokens, self._where, self._next = tokens, where, 0
        self._strict: dict[tuple[str, str], _Edge] | None = None

    def parse(self) -> None:
        token = self._take("'digraph'")
        if token.keyword == "strict":
            self._strict = {}
            token = self._take("'digraph'")
        if token.keyword != "digraph":
            raise self._error("a directed graph begins with 'digraph'", token)
        following = self._peek()
        if following is not None and following.is_id:
            self.name = self._id("a name")
        self._expect("{")
        self._statements(_Scope(), 0)
        following = self._peek()
        if following is not None:
            raise self._error("the file ends after the graph", following)

    def _statements(self, scope: _Scope, depth: int) -> set[str]:
        """Reads up to the closing brace; returns the nodes that were named."""
        if depth > MAX_DEPTH:
            raise FormatError(f"{self._where}: subgraphs are nested more than {MAX_DEPTH} deep")
        named: set[str] = set()
        while not self._accept("}"):
            if not self._accept(";"):
                named |= self._statement(scope, depth)
        return named

    def _statement(self, scope: _Scope, depth: int) -> set[str]:
        token = self._peek()
        if token is not None and token.keyword in ("node", "edge", "graph"):
            self._next += 1
            attributes = self._attributes()
            if token.keyword == "graph":
                self._leave_out(attributes)
            else:
                (scope.node if token.keyword == "node" else scope.edge).update(attributes)
            return set()
        following = self._tokens[self._next + 1 : self._next + 2]
        is_setting = bool(following) and following[0].text == "=" and not following[0].is_id
        if token is not None and token.is_id and is_setting:
            self._leave_out({self._id("a name").lower(): ""})
            self._expect("=")
            self._id("a value")
            return set()
        ends = [self._endpoint(scope, depth)]
        line = self._tokens[self._next - 1].line
        while (token := self._peek()) is not None and not token.is_id:
            if token.text == "--":
                raise self._error("edges are directed ('->')", token)
            if not self._accept("->"):
                break
            ends.append(self._endpoint(scope, depth))
        attributes = self._attributes()
        named = set().union(*(end for end, _ in ends))
        if len(ends) == 1:
            (nodes, is_node), *_ = ends
            for node in nodes if is_node else ():
                self.nodes[node][0].update(attributes)
            return named
        for (sources, _), (targets, _) in itertools.pairwise(ends):
            for src in sorted(sources):
                for dst in sorted(targets):
                    self._edge(src, dst, scope.edge | attributes, line)
        return named

    def _edge(self, src: str, dst: str, attributes: Attributes, line: int) -> None:
        if self._strict is not None and (src, dst) in self._strict:
            self._strict[src, dst].attributes.update(attributes)
            return
        edge = _Edge(src, dst, attributes, line)
        self.edges.append(edge)
        if self._strict is not None:
            self._strict[src, dst] = edge

    def _endpoint(self, scope: _Scope, depth: int) -> tuple[set[str], bool]:
        """A node, or the nodes of a subgraph; True for a node."""
        token = self._take("a node")
        if token.keyword == "subgraph":
            following = self._peek()
            if following is not None and following.is_id:
                self._next += 1
            self._expect("{")
            return self._statements(scope.inner(), depth + 1), False
        if token.text == "{" and not token.is_id:
            return self._statements(scope.inner(), depth + 1), False
        if not token.is_id or token.keyword:
            raise self._error("a node, an edge or an attribute begins with a name", token)
        self._next -= 1
        name = self._id("a node")
        while self._accept(":"):
            self._id("a port")
            count_in(self.ignored, "port of a node")
        self.nodes.setdefault(name, (dict(scope.node), token.line))
        return {name}, True

    def _attributes(self) -> Attributes:
        """Zero or more lists in brackets; names in lower case."""
        attributes: Attributes = {}
        while self._accept("["):
            while not self._accept("]"):
                key = self._id("an attribute's name").lower()
                self._expect("=")
                attributes[key] = self._id(f"the value of {key!r}")
                if not self._accept(","):
                    self._accept(";")
        return attributes

    def _leave_out(self, attributes: Attributes) -> None:
        for key in attributes:
            count_in(self.ignored, f"graph attribute {key!r}")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, due: str) -> _Token:
        token = self._peek()
        if token is None:
            line = self._tokens[-1].line if self._tokens else 1
            raise FormatError(f"{self._where}, line {line}: {due} is due, and the file ends")
        self._next += 1
        return token

    def _accept(self, mark: str) -> bool:
        token = self._peek()
        if token is None and mark in ("}", "]"):
            self._take(f"{mark!r}")
        if token is None or token.is_id or token.text != mark:
            return False
        self._next += 1
        return True

    def _expect(self, mark: str) -> None:
        token = self._take(f"{mark!r}")
        if token.is_id or token.text != mark:
            raise self._error(f"{mark!r} is due", token)

    def _id(self, due: str) -> str:
        """An id; quoted strings joined by '+' are one."""
        token = self._take(due)
        if not token.is_id:
            raise self._error(f"{due} is due", token)
        text = token.text
        while token.is_quoted and self._accept("+"):
            token = self._take("a quoted string")
            if not token.is_quoted:
                raise self._error("a quoted string is due", token)
            text += token.text
        return text

    def _error(self, rule: str, token: _Token) -> FormatError:
        return FormatError(f"{self._where}, line {token.line}: {rule}, and it has {token.text!r}")
