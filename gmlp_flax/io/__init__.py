"""Local and remote files, record formats, caches, locks, and folders that TFDS prepared."""
