"""Who advances by how many tokens in a step, and who yields memory.  Imports no torch.

Read in this order: `scheduler`, `sequence`, `admission`, `forecast`, `chunk_budget`.
"""

from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence, Status
from octavo.scheduler.updates import SequenceUpdate

__all__ = ["Scheduler", "Sequence", "SequenceUpdate", "Status"]
