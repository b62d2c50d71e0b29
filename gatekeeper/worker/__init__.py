"""The worker: claims gate runs over HTTP, measures them on an engine, uploads the evidence."""
