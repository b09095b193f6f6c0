"""Run folders to tables, claims, figures and pages."""
