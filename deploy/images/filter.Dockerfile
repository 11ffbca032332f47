# The filter as an OCI image, from the top of the repository:
#   docker build -f deploy/images/filter.Dockerfile -t registry.example.com/proxium-filter:1.0.0 .
# This is the "compat" format, which Istio's agent reads from any registry: one layer with one file, plugin.wasm. The other format is an
# OCI artifact, without a Dockerfile:
#   oras push registry.example.com/proxium-filter:1.0.0 \
#     --artifact-type application/vnd.module.wasm.config.v1+json \
#     target/wasm32-wasip1/wasm/proxium_filter.wasm:application/vnd.module.wasm.content.layer.v1+wasm
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN rustup target add wasm32-wasip1
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --profile wasm --target wasm32-wasip1 -p proxium-filter && \
    cp target/wasm32-wasip1/wasm/proxium_filter.wasm /plugin.wasm

FROM scratch
COPY --from=build /plugin.wasm /plugin.wasm
