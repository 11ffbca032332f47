# The control plane, from the top of the repository:
#   docker build -f deploy/images/control-plane.Dockerfile -t proxium .
# The libc of the builder is that of the runtime image (Debian 12); nothing else is linked dynamically.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --release -p proxium && cp target/release/proxium /proxium

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /proxium /usr/local/bin/proxium
# Providers' certificates are Envoy's matter; the image has CA certificates for rediss://.
USER 65532:65532
EXPOSE 10001 10003
ENV PROXIUM_ADMIN_LISTEN=0.0.0.0:10001 PROXIUM_INTERNAL_LISTEN=0.0.0.0:10003 PROXIUM_LOG=json
ENTRYPOINT ["/usr/local/bin/proxium"]
CMD ["serve"]
