# Generated from images.toml by `python scripts/images dockerfiles`; edit that file, not this one.
# sparkonce operator and gateway. In the repository's root: docker build -f scripts/images/operator.Dockerfile .

FROM debian:bookworm-slim AS packages
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-pip
WORKDIR /build
COPY pyproject.toml requirements.lock ./
COPY scripts/images scripts/images
RUN \
    python3 scripts/images requirements operator >packages.txt && \
    python3 scripts/images requirements build >build.txt && \
    python3 -m pip install --quiet --no-cache-dir --no-deps --require-hashes --break-system-packages -r build.txt && \
    python3 -m pip install --quiet --no-cache-dir --no-deps --require-hashes --target /opt/sparkonce/lib -r packages.txt && \
    rm -rf /opt/sparkonce/lib/bin && \
    (python3 -m compileall -q --invalidation-mode unchecked-hash /opt/sparkonce/lib || true)
COPY README.md CHANGELOG.md LICENSE ./
COPY operator operator
RUN python3 -m pip install --quiet --no-cache-dir --no-deps --no-build-isolation --target /opt/sparkonce/app . && rm -rf /opt/sparkonce/app/bin && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/sparkonce/app
RUN printf '#!/bin/sh\nexec python3 -m sparkonce "$@"\n' >/usr/local/bin/sparkonce && chmod 755 /usr/local/bin/sparkonce

FROM debian:bookworm-slim
RUN mkdir -p /usr/share/man/man1 && \
    apt-get update -qq && \
    apt-get upgrade -y -qq && \
    apt-get install -y -qq --no-install-recommends ca-certificates python3 && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /usr/share/man /usr/share/doc && \
    groupadd --gid 65532 sparkonce && \
    useradd --uid 65532 --gid 65532 --no-create-home --home-dir / sparkonce
COPY --from=packages /opt/sparkonce/lib /opt/sparkonce/lib
COPY --from=packages /opt/sparkonce/app /opt/sparkonce/app
COPY --from=packages /usr/local/bin/sparkonce /usr/local/bin/sparkonce
ENV PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV PYTHONPATH="/opt/sparkonce/app:/opt/sparkonce/lib"
ENV LC_ALL="C.UTF-8"
ENV PYTHONUTF8="1"
ENV HOME="/tmp"
ENV PYTHONDONTWRITEBYTECODE="1"
ENV PYTHONUNBUFFERED="1"
USER 65532:65532
WORKDIR /
ENTRYPOINT ["sparkonce"]
CMD ["--help"]
LABEL org.opencontainers.image.title="sparkonce operator and gateway"
