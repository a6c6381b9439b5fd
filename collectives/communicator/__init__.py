"""The public calls: check the arguments, choose, execute."""

from __future__ import annotations

from multiring.collectives.communicator.communicator import Communicator
from multiring.collectives.communicator.group import Group
from multiring.collectives.communicator.prepared import PreparedCall
from multiring.collectives.communicator.raw import Raw
from multiring.collectives.communicator.work import Work

__all__ = ["Communicator", "Group", "PreparedCall", "Raw", "Work"]
