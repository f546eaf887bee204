"""Makes the databases and the bucket of a team's servers, unless they are there.

    python deploy/prepare.py BUCKET

The environment says where: PGHOST, PGUSER and PGPASSWORD, as PostgreSQL's own programs read it, and
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import sys

import boto3
import psycopg2
from botocore.exceptions import ClientError

DATABASES = ("prefect", "mlflow", "mlflow_auth")


def main(bucket: str) -> None:
    """Makes what is missing; a second call changes nothing."""
    connection = psycopg2.connect(dbname="postgres")
    connection.autocommit = True  # a database cannot be created in a transaction
    with connection.cursor() as cursor:
        cursor.execute("SELECT datname FROM pg_database")
        existing = {name for (name,) in cursor.fetchall()}
        for name in DATABASES:
            if name not in existing:
                cursor.execute(f"CREATE DATABASE {name}")
    connection.close()
    s3 = boto3.client("s3")
    try:
        s3.head_bucket(Bucket=bucket)
    except ClientError:
        s3.create_bucket(Bucket=bucket)


if __name__ == "__main__":
    main(*sys.argv[1:])
