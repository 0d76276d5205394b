"""Verbs and rules that schedules of several targets share."""

from uif_tvm.schedules._common.generic import Generic

#: The last-resort rules of CPU targets, in order.
RULES = (Generic(),)
