# Generated from images.toml by `python scripts/images dockerfiles`; edit that file, not this one.
# etcd, etcdctl and etcdutl. In the repository's root: docker build -f scripts/images/etcd.Dockerfile .

FROM golang:1.26 AS programs
WORKDIR /build
COPY scripts/images/etcd/go.mod ./
RUN \
    CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w -buildid=' -o /programs/etcd go.etcd.io/etcd/server/v3 && \
    CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w -buildid=' -o /programs/etcdctl go.etcd.io/etcd/etcdctl/v3 && \
    CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w -buildid=' -o /programs/etcdutl go.etcd.io/etcd/etcdutl/v3 && \
    mkdir /empty

FROM scratch
COPY --from=programs /programs/ /usr/local/bin/
COPY --from=programs /empty/ /tmp/
ENV PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER 65532:65532
WORKDIR /
ENTRYPOINT ["etcd"]
LABEL org.opencontainers.image.title="etcd, etcdctl and etcdutl"
