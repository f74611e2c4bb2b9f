"""Growers in the trainers of other libraries; one module and one extra for each library, which nothing else loads."""
