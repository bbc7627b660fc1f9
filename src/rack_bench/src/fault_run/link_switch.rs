//! Switch of a simulated network link. While the link is cut, the bytes of its connections are delayed, as if the
//! network dropped all packets. They are delivered after the link is restored.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

#[derive(Debug, Clone)]
pub struct LinkSwitch(watch::Sender<bool>);

impl LinkSwitch {
    pub fn new() -> LinkSwitch {
        LinkSwitch(watch::Sender::new(true))
    }

    pub fn cut(&self) {
        self.0.send_replace(false);
    }

    pub fn repair(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the link is not cut.
    pub async fn wait_until_up(&self) {
        // The wait cannot fail: this value owns the sender, so the channel is not closed.
        let _ = self.0.subscribe().wait_for(|is_up| *is_up).await;
    }

    /// Copies the bytes of a connection in both directions over this link, until one direction fails or both have
    /// ended.
    ///
    /// # Errors
    /// Returns the error of the first direction that fails.
    pub async fn copy_both(
        &self,
        one: impl AsyncRead + AsyncWrite + Unpin,
        other: impl AsyncRead + AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let ((mut read_one, mut write_one), (mut read_other, mut write_other)) =
            (tokio::io::split(one), tokio::io::split(other));
        let there = self.copy(&mut read_one, &mut write_other);
        let back = self.copy(&mut read_other, &mut write_one);
        tokio::try_join!(there, back).map(drop)
    }

    async fn copy(&self, from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let length = from.read(&mut buffer).await?;
            self.wait_until_up().await;
            if length == 0 {
                return to.shutdown().await;
            }
            to.write_all(buffer.get(..length).unwrap_or_default()).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn cut_link_delivers_bytes_after_its_repair() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut server) = tokio::io::duplex(64);
        let link = LinkSwitch::new();
        let copied = link.clone();
        tokio::spawn(async move { copied.copy_both(near, far).await });
        let mut byte = [0];
        client.write_all(b"a").await.unwrap();
        server.read_exact(&mut byte).await.unwrap();
        link.cut();
        client.write_all(b"b").await.unwrap();
        let held = tokio::time::timeout(Duration::from_millis(100), server.read_exact(&mut byte)).await;
        assert!(held.is_err());
        link.repair();
        server.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, *b"b");
    }
}
