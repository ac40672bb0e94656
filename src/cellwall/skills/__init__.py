"""Skills that a person has signed: manifests, the loader that checks them, and where they lie."""
