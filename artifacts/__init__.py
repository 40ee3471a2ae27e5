"""Floor 2: number formats, page layouts, and the artifact's writer, reader, checks and identity (SPEC.md)."""
