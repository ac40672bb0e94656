"""Sign-in at an OpenID provider (OpenID Connect Core 1.0, authorization code with PKCE)."""
