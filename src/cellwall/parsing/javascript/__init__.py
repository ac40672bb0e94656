"""JavaScript and TypeScript: tokens, and one canonical form of the code; pure."""
