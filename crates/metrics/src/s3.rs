//! What an S3 door has counted, for the page and for whoever asks the door.

/// What an S3 door has done since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Counters {
    /// Connections that are open now.
    pub connections: u64,
    pub connections_accepted: u64,
    /// Closed at once, because as many as the door takes were open.
    pub connections_refused: u64,
    /// Of each operation that was asked for, by name, and of `other`.
    pub operations: Vec<S3OperationCounters>,
}

/// The requests of one operation that were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct S3OperationCounters {
    pub operation: &'static str,
    pub requests: u64,
    /// Answered with a status of 400 to 499.
    pub client_errors: u64,
    /// Answered with a status of 500 to 599.
    pub server_errors: u64,
    /// Bytes of bodies of requests, after aws-chunked was decoded.
    pub bytes_received: u64,
    /// Bytes of bodies of answers.
    pub bytes_sent: u64,
}
