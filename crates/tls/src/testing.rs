//! Certificates for tests, of a cluster that a test makes.

use crate::{Authority, Context, Credential, Holder, Root};
use hekate_proto::{Result, ServerId};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const LIFE: Duration = Duration::from_secs(24 * 3600);

/// The authority of a cluster that exists in a test.
pub struct TestCluster {
    root: Root,
    authority: Authority,
}

impl TestCluster {
    /// # Errors
    /// Those of [`Root::create`] and [`Root::authorise`].
    pub fn create(name: &str) -> Result<Self> {
        let now = SystemTime::now();
        let root = Root::create(name, 2 * LIFE, now)?;
        let authority = root.authorise(name, 2 * LIFE, now)?;
        Ok(Self { root, authority })
    }

    /// # Errors
    /// Those of [`Authority::issue`].
    pub fn credential(&self, holder: &Holder) -> Result<Credential> {
        let (key, public) = Credential::make_key()?;
        let (chain, _) = self.authority.issue(holder, &public, LIFE, SystemTime::now())?;
        let (cluster, roots) = (self.authority.cluster().into(), self.root.certificate.clone());
        Ok(Credential { cluster, network: String::new(), servers: Vec::new(), roots, chain, key })
    }

    /// The context of a server.
    ///
    /// # Errors
    /// Those of [`Authority::issue`].
    pub fn server(&self, number: u32) -> Result<Arc<Context>> {
        Context::of(self.credential(&Holder::Server(ServerId(number)))?).map(Arc::new)
    }

    /// The context of a client.
    ///
    /// # Errors
    /// Those of [`Authority::issue`].
    pub fn client(&self, name: &str) -> Result<Arc<Context>> {
        Context::of(self.credential(&Holder::client(name)?)?).map(Arc::new)
    }
}
