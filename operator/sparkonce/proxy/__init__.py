"""A reverse proxy that gives idempotency to a service in any language: `sparkonce.asgi` before an upstream."""
