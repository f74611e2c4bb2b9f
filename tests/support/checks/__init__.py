"""What results are compared with: reference computations, files and lakes before and after, searches in the code."""
