//! s3s's trait: each operation is a function of another file.

use super::{Answer, Service, acl, attributes, buckets, copies, listing, multipart, objects, reads, removal, tags};
use s3s::dto::*;
use s3s::{S3, S3Request};

#[async_trait::async_trait]
impl S3 for Service {
    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        multipart::abort(self, request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        multipart::complete(self, request).await
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        copies::copy(self, request).await
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        buckets::create(self, request).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        multipart::create(self, request).await
    }

    async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> Answer<DeleteBucketOutput> {
        buckets::delete(self, request).await
    }

    async fn delete_bucket_cors(&self, request: S3Request<DeleteBucketCorsInput>) -> Answer<DeleteBucketCorsOutput> {
        buckets::delete_cors(self, request).await
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        removal::delete(self, request).await
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> Answer<DeleteObjectTaggingOutput> {
        tags::delete(self, request).await
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        removal::delete_many(self, request).await
    }

    async fn get_bucket_acl(&self, request: S3Request<GetBucketAclInput>) -> Answer<GetBucketAclOutput> {
        acl::get_of_bucket(self, request).await
    }

    async fn get_bucket_cors(&self, request: S3Request<GetBucketCorsInput>) -> Answer<GetBucketCorsOutput> {
        buckets::get_cors(self, request).await
    }

    async fn get_bucket_location(&self, request: S3Request<GetBucketLocationInput>) -> Answer<GetBucketLocationOutput> {
        buckets::location(self, request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        reads::get(self, request).await
    }

    async fn get_object_acl(&self, request: S3Request<GetObjectAclInput>) -> Answer<GetObjectAclOutput> {
        acl::get_of_object(self, request).await
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> Answer<GetObjectAttributesOutput> {
        attributes::get(self, request).await
    }

    async fn get_object_tagging(&self, request: S3Request<GetObjectTaggingInput>) -> Answer<GetObjectTaggingOutput> {
        tags::get(self, request).await
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> Answer<GetBucketVersioningOutput> {
        buckets::versioning(self, request).await
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        buckets::head(self, request).await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        reads::head(self, request).await
    }

    async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        buckets::list(self, request).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        multipart::list(self, request).await
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> Answer<ListObjectVersionsOutput> {
        listing::list_versions(self, request).await
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
        listing::list(self, request).await
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        listing::list_v2(self, request).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        multipart::list_parts(self, request).await
    }

    async fn put_bucket_acl(&self, request: S3Request<PutBucketAclInput>) -> Answer<PutBucketAclOutput> {
        acl::put_of_bucket(self, request).await
    }

    async fn put_bucket_cors(&self, request: S3Request<PutBucketCorsInput>) -> Answer<PutBucketCorsOutput> {
        buckets::put_cors(self, request).await
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        objects::put(self, request).await
    }

    async fn put_object_acl(&self, request: S3Request<PutObjectAclInput>) -> Answer<PutObjectAclOutput> {
        acl::put_of_object(self, request).await
    }

    async fn put_object_tagging(&self, request: S3Request<PutObjectTaggingInput>) -> Answer<PutObjectTaggingOutput> {
        tags::put(self, request).await
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        multipart::upload_part(self, request).await
    }

    async fn upload_part_copy(&self, request: S3Request<UploadPartCopyInput>) -> Answer<UploadPartCopyOutput> {
        multipart::upload_part_copy(self, request).await
    }
}
