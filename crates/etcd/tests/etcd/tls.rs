//! Mutual TLS: members that let in only clients with a certificate of their authority.

use crate::support::Etcd;
use hekate_cluster::{Coordinator, Outcome, Watched};
use hekate_etcd::{Credential, Endpoints, EtcdCoordinator, Members};
use hekate_proto::{Error, Result};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::path::Path;
use std::time::{Duration, Instant};

/// An authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(parameters, key) }
    }

    /// A certificate and its key. etcd's gateway is a client of its own member, with the member's certificate.
    fn sign(&self, name: &str) -> (String, String) {
        let mut parameters = CertificateParams::new([name.to_string()]).unwrap();
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (parameters.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn credential(&self) -> Credential {
        let (certificate, key) = self.sign("hekate");
        Credential { ca: self.pem.clone(), certificate, key }
    }

    /// Options of a member, with their files.
    fn options(&self, directory: &Path) -> Vec<String> {
        let (certificate, key) = self.sign("127.0.0.1");
        let files = [("trusted-ca", &self.pem), ("cert", &certificate), ("key", &key)];
        let option = |(name, text): (&str, &String)| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            format!("--{name}-file={}", path.display())
        };
        files.into_iter().map(option).chain(["--client-cert-auth".to_string()]).collect()
    }
}

/// The error of a read, which comes soon.
fn refused(endpoints: &Endpoints, credential: Credential) -> String {
    let coordinator = EtcdCoordinator::new(endpoints.clone(), &credential).unwrap();
    let begun = Instant::now();
    let read = coordinator.get("/a");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let Err(Error::Unavailable { what }) = read else { panic!("{read:?}") };
    let written: Result<Outcome> = coordinator.transact(&[], &[("/refused", Some("1"))]);
    assert_ne!(written, Ok(Outcome::Written));
    what
}

#[test]
fn members_let_in_only_clients_of_their_authority() {
    let (authority, other) = (Authority::new(), Authority::new());
    let options = |directory: &Path| (authority.options(directory), authority.credential());
    let etcd = Etcd::start_with("tls", 3, options);
    let (coordinator, endpoints) = (etcd.connect(), etcd.endpoints());
    assert_eq!(coordinator.transact(&[], &[("/a", Some("1"))]), Ok(Outcome::Written));
    assert_eq!(coordinator.keep("/alive/a", "1", Duration::from_secs(3)), Ok(Outcome::Written));
    let begin = coordinator.list("/").unwrap().revision;
    assert_eq!(coordinator.transact(&[], &[("/a", Some("2"))]), Ok(Outcome::Written));
    let watched = coordinator.watch(&["/a"], begin, Duration::from_secs(10)).unwrap();
    assert!(matches!(watched, Watched::Changed { .. }), "{watched:?}");
    assert_eq!(Members::new(endpoints.clone(), &etcd.credential).unwrap().list().unwrap().len(), 3);

    let own = "not accept the certificate of this process";
    let without = Credential { ca: authority.pem.clone(), ..Credential::default() };
    let said = refused(&endpoints, without);
    assert!(said.contains(own), "{said}");
    let foreign = Credential { ca: authority.pem.clone(), ..other.credential() };
    let said = refused(&endpoints, foreign);
    assert!(said.contains(own), "{said}");
    let said = refused(&endpoints, other.credential());
    assert!(said.contains("the certificate of etcd's member is not accepted"), "{said}");
    let plain = Endpoints::parse(&endpoints.to_string().replace("https", "http")).unwrap();
    refused(&plain, Credential::default());
    assert_eq!(coordinator.get("/refused").unwrap(), None);
}
