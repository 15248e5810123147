# docker build -t xcheck . && docker run --rm -v "$PWD:/work" xcheck run --model tiny-llama2 --checkpoint all
#
# The program is built from this source. With --build-arg FROM=archive it is that of a release's archive in dist/.
ARG FROM=source

FROM rust:1-slim-bookworm AS source
WORKDIR /source
COPY . .
RUN cargo install --locked --path . --root /built

FROM --platform=$BUILDPLATFORM debian:bookworm-slim AS archive
ARG TARGETARCH
COPY dist /dist
RUN case "$TARGETARCH" in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac; \
    mkdir -p /built/bin && tar -xzf /dist/xcheck-$machine-unknown-linux-gnu.tar.gz -C /built/bin xcheck

FROM ${FROM} AS program

FROM debian:bookworm-slim
COPY --from=program /built/bin/xcheck /usr/local/bin/xcheck
COPY checkpoints /usr/share/xcheck/checkpoints
ENV XCHECK_CHECKPOINTS=/usr/share/xcheck/checkpoints
WORKDIR /work
ENTRYPOINT ["xcheck"]
