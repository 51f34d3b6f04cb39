"""Where measurements are kept: SQLite or Postgres. `engine.open_store` is the way in."""
