//! Sockets that can be torn down rudely: the only way to show a client a reset.

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// How many connections there were, and are.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub accepted: AtomicU64,
    pub open: AtomicU64,
}

pub(super) struct Sockets {
    pub listener: TcpListener,
    pub counts: Arc<Counts>,
}

impl Listener for Sockets {
    type Io = Socket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Socket, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    stream.set_nodelay(true).ok();
                    self.counts.accepted.fetch_add(1, SeqCst);
                    self.counts.open.fetch_add(1, SeqCst);
                    return (Socket { stream, reset: Reset::default(), counts: self.counts.clone() }, peer);
                }
                // Out of file descriptors, or the peer left again: either passes.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Asks a [`Socket`] to end with a RST instead of a FIN.
#[derive(Clone, Debug, Default)]
pub(super) struct Reset(Arc<AtomicBool>);

impl Reset {
    /// From now on nothing is written any more; the server then drops the socket, which sends the RST.
    pub fn pull(&self) {
        self.0.store(true, SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.load(SeqCst) { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl Connected<IncomingStream<'_, Sockets>> for Reset {
    fn connect_info(stream: IncomingStream<'_, Sockets>) -> Self {
        stream.io().reset.clone()
    }
}

pub(super) struct Socket {
    stream: TcpStream,
    reset: Reset,
    counts: Arc<Counts>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.check().is_err() {
            self.stream.set_zero_linger().ok();
        }
        self.counts.open.fetch_sub(1, SeqCst);
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.reset.check()?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.reset.check()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reset.check()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A clean shutdown would send the FIN before the RST.
        self.reset.check()?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
