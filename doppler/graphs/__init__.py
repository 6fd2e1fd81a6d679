"""Workloads as dataflow graphs, one per file; builder, import and export, levels."""
