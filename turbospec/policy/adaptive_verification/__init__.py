"""The policy `vllm_adaptive_verification`: vLLM's adaptive verification. Modules here are private."""

from turbospec.policy.adaptive_verification.policy import VllmAdaptiveVerificationConfig

__all__ = ["VllmAdaptiveVerificationConfig"]
