"""XML as elements with line numbers, read safely.

The standard library's expat resolves nothing outside the text; entities that a text declares, which could grow without
bound, are refused. A wrapper such as defusedxml gives no line numbers, and expat itself is what it wraps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.parsers import expat

from multiring.errors import TopologyError

__all__ = ["Element", "parse_xml"]

_MAX_DEPTH = 64


@dataclass(slots=True)
class Element:
    """An element: its tag, attributes, children, and the line where it starts. Text between tags is left out."""

    tag: str
    line: int
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)

    def named(self, tag: str) -> list[Element]:
        """Return the children of a tag."""
        return [child for child in self.children if child.tag == tag]


def parse_xml(text: str, where: str) -> Element:
    """Read one XML document.

    Raises
    ------
    TopologyError
        If it is not well-formed, declares entities, or is nested more than 64 deep.
    """
    parser = expat.ParserCreate()
    root: list[Element] = []
    stack: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) >= _MAX_DEPTH:
            refuse(f"got elements more than {_MAX_DEPTH} deep")
        element = Element(tag, parser.CurrentLineNumber, attributes)
        (stack[-1].children if stack else root).append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()

    def entity(*_: Any) -> None:
        refuse("got an entity declaration, wanted none: they are not resolved here")

    def refuse(what: str) -> NoReturn:
        raise TopologyError(f"{where}, line {parser.CurrentLineNumber}: {what}")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise TopologyError(
            f"{where}, line {error.lineno}: got {expat.ErrorString(error.code)}, wanted well-formed XML"
        ) from None
    return root[0]
