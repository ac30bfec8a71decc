"""From results files to comparisons, tables and figures."""
