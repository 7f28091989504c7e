"""What Alembic runs first: it takes the connection it is handed, inside its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=False,
    transaction_per_migration=False,
)
context.run_migrations()
