# One image for every part of publishing; docker-compose.yml says which part a container runs.
FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ".[web,postgres,redis,publishing]"
COPY scripts/generate_api_keys.py ./

# The volume that is mounted here is this user's from the start.
RUN useradd --system ulak && mkdir /data && chown ulak /data
USER ulak

CMD ["ulak", "publishing", "backend", "--host", "0.0.0.0"]
