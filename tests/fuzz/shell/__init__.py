"""The shell reader against the real bash: generated texts, what bash does with them, what was read."""
