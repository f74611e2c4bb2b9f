"""One file per kind of stacked host; the file's name is the kind's name and ``TRUNK`` makes it for a cohort."""
