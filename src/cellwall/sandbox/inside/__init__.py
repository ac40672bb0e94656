"""What runs inside a cell, beside the user's code. Standard library only; imported by nobody."""
