"""The pure core: no input or output, no clock, no global random state."""
