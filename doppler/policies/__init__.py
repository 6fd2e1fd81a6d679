"""SEL and PLC: the policies that choose the next op and its device, and their fast path."""
