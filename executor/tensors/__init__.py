"""The job of tensor graphs: matrix-multiply chains, feed-forward networks and their like."""
