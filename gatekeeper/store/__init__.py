"""All SQL: tables, the run queue and functions(session, …) that return frozen records."""
