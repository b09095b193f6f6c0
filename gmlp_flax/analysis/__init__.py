"""Run folders to tables and figures."""
