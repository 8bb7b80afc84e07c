# Generated from images.toml by `python scripts/images dockerfiles`; edit that file, not this one.
# PySpark with sparkonce, for drivers and executors on Kubernetes. In the repository's root: docker build -f scripts/images/spark.Dockerfile .

FROM debian:bookworm-slim AS packages
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-pip
WORKDIR /build
COPY pyproject.toml requirements.lock ./
COPY scripts/images scripts/images
RUN \
    python3 scripts/images requirements spark >packages.txt && \
    python3 scripts/images requirements build >build.txt && \
    python3 -m pip install --quiet --no-cache-dir --no-deps --require-hashes --break-system-packages -r build.txt && \
    python3 -m pip install --quiet --no-cache-dir --no-deps --require-hashes --target /opt/sparkonce/lib -r packages.txt && \
    rm -rf /opt/sparkonce/lib/bin && \
    (python3 -m compileall -q --invalidation-mode unchecked-hash /opt/sparkonce/lib || true)
COPY README.md CHANGELOG.md LICENSE ./
COPY operator operator
RUN python3 -m pip install --quiet --no-cache-dir --no-deps --no-build-isolation --target /opt/sparkonce/app . && rm -rf /opt/sparkonce/app/bin && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/sparkonce/app
RUN printf '#!/bin/sh\nexec python3 -m sparkonce "$@"\n' >/usr/local/bin/sparkonce && chmod 755 /usr/local/bin/sparkonce

FROM packages AS jars
RUN mkdir -p /usr/share/man/man1 && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless
RUN PYTHONPATH=/opt/sparkonce/lib JAVA_HOME=/usr python3 scripts/images jars spark /jars

FROM debian:bookworm-slim
RUN mkdir -p /usr/share/man/man1 && \
    apt-get update -qq && \
    apt-get upgrade -y -qq && \
    apt-get install -y -qq --no-install-recommends bash ca-certificates openjdk-17-jre-headless procps python3 tini && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /usr/share/man /usr/share/doc && \
    groupadd --gid 185 spark && \
    useradd --uid 185 --gid 185 --no-create-home --home-dir /opt/spark/work-dir spark
RUN install -d -o 185 -g 185 /opt/spark/conf /opt/spark/work-dir
COPY --from=packages /opt/sparkonce/lib /opt/sparkonce/lib
COPY --from=jars /jars/ /opt/sparkonce/lib/pyspark/jars/
COPY --from=packages /opt/sparkonce/app /opt/sparkonce/app
COPY --from=packages /usr/local/bin/sparkonce /usr/local/bin/sparkonce
COPY --chmod=755 scripts/images/spark/entrypoint.sh /opt/entrypoint.sh
COPY --chmod=755 scripts/images/spark/sparkonce-driver /usr/local/bin/sparkonce-driver
ENV PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV PYTHONPATH="/opt/sparkonce/app:/opt/sparkonce/lib"
ENV LC_ALL="C.UTF-8"
ENV PYTHONUTF8="1"
ENV JAVA_HOME="/usr"
ENV PYSPARK_PYTHON="python3"
ENV PYTHONUNBUFFERED="1"
ENV SPARK_HOME="/opt/sparkonce/lib/pyspark"
USER 185:185
WORKDIR /opt/spark/work-dir
ENTRYPOINT ["/opt/entrypoint.sh"]
LABEL org.opencontainers.image.title="PySpark with sparkonce, for drivers and executors on Kubernetes"
