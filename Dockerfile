# docker build -t xcheck . && docker run --rm -v "$PWD:/work" xcheck run --model tiny-llama2 --checkpoint all
FROM rust:1-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo install --locked --path . --root /built

FROM debian:bookworm-slim
COPY --from=build /built/bin/xcheck /usr/local/bin/xcheck
COPY checkpoints /usr/share/xcheck/checkpoints
ENV XCHECK_CHECKPOINTS=/usr/share/xcheck/checkpoints
WORKDIR /work
ENTRYPOINT ["xcheck"]
