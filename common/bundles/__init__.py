"""Released models as one signed file: what it says, how it is made, and how it is checked."""
