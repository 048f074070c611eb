"""The model of the photograph test bed: `features`, then `train`; docs/photos-protocol.md has the commands."""
