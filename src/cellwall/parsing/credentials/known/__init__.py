"""How values that must not be seen are found again, in every form in which they can be written.

Shared by what watches the way out and what cleans output: both must know the same forms.
"""
