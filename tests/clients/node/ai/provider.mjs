import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

export const provider = createOpenAICompatible({
  name: "mine",
  baseURL: process.env.BASE_URL,
  apiKey: "not-needed",
  supportsStructuredOutputs: true,
  includeUsage: true,
});
